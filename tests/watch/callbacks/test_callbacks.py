"""Real, short trainings with each library, stopped and resumed: the run is that of a training that never stopped."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import rankwise as rw
from rankwise.errors import UserError
from tests.watch.training import batch, gpt

STEPS = 12


def numbers_at(run: rw.Run, step: int) -> list[float]:
    rows = [row for row in run.rows(step) if row["failure"] is None]
    return [row[name] for row in rows for name in ("effective_rank", "nuclear_norm") if row[name] is not None]


def check(folder: Path) -> None:
    """The run of a training that was stopped and resumed is that of one that was not."""
    whole, parts = rw.open_run(folder / "whole"), rw.open_run(folder / "parts")
    assert whole.steps == parts.steps == [1, 3, 6, 9, 12]
    for run in (whole, parts):
        assert not run.gaps
        assert not run.is_written
        last = [row for row in run.rows(STEPS) if row["of"] == "product"]
        assert last[0]["decay"] == pytest.approx(STEPS * 1e-3 * 0.1)
        assert all(row["effective_rank"] > 0 for row in run.rows(STEPS))
        assert run.snapshots[-1].loss > 0
    for step in whole.steps:
        assert numbers_at(parts, step) == pytest.approx(numbers_at(whole, step), rel=1e-4), step


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_trainer_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    from rankwise.watch.callbacks.huggingface import TrainerMonitor

    def train(name: str, stop: int, resume: bool = False) -> None:
        transformers.set_seed(0)
        config = transformers.GPT2Config(
            n_layer=1, n_embd=16, n_head=2, vocab_size=128, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
        model = transformers.GPT2LMHeadModel(config)
        data = [{"input_ids": batch(each, size=1)[0][0], "labels": batch(each, size=1)[0][0]} for each in range(48)]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / f"{name}-checkpoints"),
            max_steps=stop,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            weight_decay=0.1,
            save_steps=5,
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        monitor = TrainerMonitor(run=tmp_path / name, every=3, gradients=True)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[monitor])
        trainer.train(resume_from_checkpoint=resume or None)

    train("whole", STEPS)
    train("parts", 7)
    shutil.rmtree(tmp_path / "parts-checkpoints/checkpoint-7", ignore_errors=True)
    train("parts", STEPS, resume=True)
    check(tmp_path)
    assert rw.open_run(tmp_path / "whole").heading["config"]["n_embd"] == 16


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.callbacks import ModelCheckpoint

    from rankwise.watch.callbacks.lightning import LightningMonitor

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = gpt()

        def training_step(self, given: Any, index: int) -> torch.Tensor:
            # By the step, not by the loader's place, which Lightning does not go back to.
            _, loss = self.model(*batch(2 * self.global_step + index % 2))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, weight_decay=0.1)

    def train(name: str, stop: int, checkpoint: Path | None = None) -> None:
        keep = ModelCheckpoint(dirpath=tmp_path / f"{name}-checkpoints", every_n_train_steps=5, save_top_k=-1)
        trainer = lightning.Trainer(
            max_steps=stop,
            accelerator="cpu",
            accumulate_grad_batches=2,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[LightningMonitor(run=tmp_path / name, every=3, gradients=True), keep],
        )
        trainer.fit(Module(), torch.utils.data.DataLoader(list(range(2 * STEPS))), ckpt_path=checkpoint)

    train("whole", STEPS)
    train("parts", 7)
    (checkpoint,) = (tmp_path / "parts-checkpoints").glob("*step=5.ckpt")
    with torch.random.fork_rng():
        train("parts", STEPS, checkpoint)
    check(tmp_path)


def test_options_are_looked_at_before_anybody_trains(tmp_path):
    pytest.importorskip("lightning.pytorch")
    from rankwise.watch.callbacks.lightning import LightningMonitor

    with pytest.raises(UserError, match="a monitor has no option 'evry': give run, every, overhead"):
        LightningMonitor(run=tmp_path, evry=3)
    with pytest.raises(UserError, match="a monitor has no option 'resume'"):
        LightningMonitor(run=tmp_path, resume=True)
    with pytest.raises(UserError, match="give run="):
        LightningMonitor(every=3)
