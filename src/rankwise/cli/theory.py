"""`rankwise theory`: the theory lab's figures and tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

if TYPE_CHECKING:
    from rankwise.theory import Path as GreedyPath

Count = Annotated[int, Parameter(validator=Number(gte=1))]
Alphas = Annotated[tuple[float, ...], Parameter(name="--alpha", consume_multiple=False)]

theory = App(name="theory", help="Predict how training raises rank, and draw the papers' figures.")


@theory.command
def gallery(
    *,
    html: Path | None = None,
    json: bool = False,
    width: Count = 8,
    tokens: Count = 10,
    samples: Count = 200,
    stages: Count = 10,
    alpha: Alphas = (),
    decay: Annotated[tuple[float, ...], Parameter(name="--decay", consume_multiple=False)] = (),
    seed: int = 1,
) -> None:
    """Draw the papers' figures about the theory, in one page with sliders.

    Figures 2 and 6 to 10 of "Transformers learn through gradual rank increase" and Figure 1 of "Weight decay induces
    low-rank attention layers", computed anew: seconds for the small toy, minutes for the paper's own.

    ```
    rankwise theory gallery --html gallery.html
    rankwise theory gallery --html paper.html --width 50 --samples 1000 --stages 26
    ```

    Parameters
    ----------
    html
        Where the page is written; rankwise-theory.html unless --json is given.
    json
        Print the record on stdout, and nothing else there.
    width
        Of the toy head; the paper's is 50.
    tokens
        Of each sample.
    samples
        Of the toy's data; the paper's are 1,000.
    stages
        How many stages the runs are to cover.
    alpha
        A scale of initialization, between 0 and 1; give it several times. By default the paper's six.
    decay
        A coefficient of weight decay; give it several times.
    seed
        Of data, teacher and start.
    """
    from json import dumps

    from rankwise.errors import require
    from rankwise.files import check_writable
    from rankwise.theory.gallery import ALPHAS, DECAYS
    from rankwise.theory.gallery import gallery as compute

    page = html if html is not None or json else Path("rankwise-theory.html")
    require("scipy", extra="theory")
    if page is not None:
        check_writable(page)
        for library in ("jinja2", "plotly"):
            require(library, extra="report")
    record = compute(
        width=width,
        tokens=tokens,
        samples=samples,
        stages=stages,
        alphas=alpha or ALPHAS,
        decays=decay or DECAYS,
        seed=seed,
        progress=_say,
    )
    if page is not None:
        from rankwise.report.gallery import write_gallery

        write_gallery(record, page)
        _say(f"wrote {page}")
    if json:
        print(dumps(record, allow_nan=False), flush=True)


@theory.command
def stages(
    *,
    problem: Annotated[str, Parameter(name="--problem")] = "head",
    alpha: Alphas = (1e-8, 1e-32),
    stages: Count = 10,
    width: Count = 4,
    samples: Count = 64,
    check: bool = False,
    seed: int = 1,
    json: bool = False,
) -> None:
    """Predict the stages of training, and hold exact flows against them.

    ```
    rankwise theory stages --alpha 1e-8 --alpha 1e-300
    rankwise theory stages --problem regression --width 8 --samples 4 --check
    ```

    Parameters
    ----------
    problem
        head: a diagonal attention head that learns from another. regression: linear regression with random inputs;
        with fewer samples than its width it ends at the least l1 norm.
    alpha
        A scale of initialization, between 0 and 1; give it several times.
    stages
        The most stages to predict.
    width
        Of the head, or the number of coefficients.
    samples
        Of the data.
    check
        Test the theorem's assumptions along the path too.
    seed
        Of the data and the start.
    json
        Print everything as JSON on stdout, and nothing else there.
    """
    from json import dumps

    from rich.console import Console

    from rankwise.errors import UserError
    from rankwise.theory import check as check_assumptions
    from rankwise.theory import compare, flow, greedy

    if not alpha or not all(0 < one < 1 for one in alpha):
        raise UserError(f"--alpha {', '.join(map(str, alpha))}: give scales between 0 and 1, such as 1e-8")
    made, start = _problem(problem, width, samples, seed)
    path = greedy(made, stages=stages)
    until = 1.2 * float(path.times[-1]) if path.stages else 1.0
    runs = [flow(made, log_alpha=math.log(one), start=start, until=until) for one in sorted(set(alpha), reverse=True)]
    held = compare(path, runs)
    if json:
        print(dumps(_record(path, held), allow_nan=False), flush=True)
        return
    console = Console()
    console.print(path)
    if path.stages:
        console.print(held)
    if check:
        console.print(check_assumptions(made, path, start=start))


def _problem(name: str, width: int, samples: int, seed: int) -> tuple[Any, Any]:
    import torch

    from rankwise.errors import UserError
    from rankwise.theory import head_toy, regression

    if name == "head":
        toy = head_toy(width=width, tokens=10, samples=samples, seed=seed)
        return toy.problem, toy.start
    if name == "regression":
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(samples, width, generator=generator, dtype=torch.float64)
        coefficients, *start = torch.randn(3, width, generator=generator, dtype=torch.float64)
        return regression(inputs, inputs @ coefficients), tuple(start)
    raise UserError(f"--problem {name}: give head or regression")


def _record(path: GreedyPath, held: Any) -> dict[str, Any]:
    def finite(values: list[float]) -> list[float | None]:
        return [value if math.isfinite(value) else None for value in values]

    return {
        "ending": path.ending.name.lower(),
        "reason": path.reason,
        "complete": path.complete,
        "stages": [
            {
                "time": stage.time,
                "coordinate": stage.coordinate,
                "name": None if stage.place is None else str(stage.place),
                "sign": stage.sign,
                "dropped": list(stage.dropped),
                "support": list(stage.support),
                "margin": finite([stage.margin])[0],
                "curvature": stage.curvature,
                "loss": stage.loss,
            }
            for stage in path.stages
        ],
        "alphas": held.log_alphas.exp().tolist(),
        "measured": [finite(row) for row in held.measured.tolist()],
        "slopes": [finite(row) for row in held.slopes.tolist()],
        "overlapping": held.inseparable.tolist(),
    }


def _say(text: str) -> None:
    import sys

    print(text, file=sys.stderr)
