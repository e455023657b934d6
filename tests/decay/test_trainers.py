"""The recipes for the training loops of others: real short trainings reach what a plain loop reaches."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankwise.decay.frobenius import FrobeniusDecay
from rankwise.decay.groups import param_groups
from rankwise.sites.find import find

pytestmark = pytest.mark.slow
RATE, BATCH, STEPS = 1e-2, 4, 6


def language_model() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        **{"n_layer": 2, "n_head": 3, "n_embd": 12, "vocab_size": 31, "n_positions": 16, "bos_token_id": 0},
        **{"eos_token_id": 0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "loss_type": "ForCausalLM"},
    )
    return transformers.GPT2LMHeadModel(config)


def examples() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(31, (BATCH * STEPS, 9), generator=generator)
    labels = tokens.clone()
    labels[:, 0] = -100  # nothing predicts the first token, and the Trainer would count it
    return [{"input_ids": one, "labels": two} for one, two in zip(tokens, labels, strict=True)]


def prepared(model: nn.Module, how: str) -> torch.optim.Optimizer:
    """The three lines."""
    if how == "groups":
        groups = param_groups(model, weight_decay=0.1, qk=0.5, ov=0.0, rows="attach")
        optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-3)
        groups.attach(optimizer)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.5, eps=1e-3)
        FrobeniusDecay(find(model).select(kind=("qk", "ov"))).attach(optimizer)
    return optimizer


def plain_loop(how: str, *, accumulate: int = 1, clip: float = 1.0) -> dict[str, Tensor]:
    model = language_model().train()
    optimizer = prepared(model, how)
    found = examples()
    for start in range(0, len(found), BATCH * accumulate):
        optimizer.zero_grad()
        for part in range(accumulate):
            chosen = found[start + part * BATCH : start + (part + 1) * BATCH]
            tokens = torch.stack([each["input_ids"] for each in chosen])
            (model(input_ids=tokens, labels=tokens).loss / accumulate).backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def same(model: nn.Module, expected: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach().cpu(), expected[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize(("how", "accumulate"), [("groups", 1), ("products", 1), ("products", 2)])
def test_the_hugging_face_trainer(how: str, accumulate: int, tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    model = language_model()
    optimizer = prepared(model, how)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=accumulate,
        num_train_epochs=1,
        max_grad_norm=1.0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)

    class InOrder(transformers.Trainer):
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        InOrder(model=model, args=arguments, train_dataset=examples(), optimizers=(optimizer, constant)).train()
    same(model, plain_loop(how, accumulate=accumulate))


@pytest.mark.parametrize(("how", "accumulate"), [("groups", 1), ("products", 1), ("products", 2)])
def test_lightning(how: str, accumulate: int, tmp_path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = language_model()

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return prepared(self.model, how)

    module = Module()
    loader = torch.utils.data.DataLoader(examples(), batch_size=BATCH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library's own
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            gradient_clip_val=1.0,
            accumulate_grad_batches=accumulate,
            default_root_dir=str(tmp_path),
        )
        trainer.fit(module, loader)
    same(module.model, plain_loop(how, accumulate=accumulate))


def test_the_decay_is_felt() -> None:
    """Or the comparisons above would say nothing."""
    with_it, without = plain_loop("products"), plain_loop("groups")
    name = "transformer.h.0.attn.c_attn.weight"
    assert (with_it[name] - without[name]).abs().max() > 1e-4
