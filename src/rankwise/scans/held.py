"""A checkpoint through a small window: the tensors of one site are held, those of the next are fetched meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from rankwise.sites.checkpoints import Checkpoint
from rankwise.sites.factor import Factor
from rankwise.sites.site import Site

Piece = tuple[str, tuple[int, int] | None]

# The next site is fetched ahead only when it is no larger than this.
AHEAD = 512 * 2**20


def pieces(site: Site, *, effective: bool) -> list[Piece]:
    """The tensors, or rows of tensors, that a site's product needs."""
    factors: list[Factor] = list(site.factors)
    if effective:
        factors += [bias for bias in (*site.biases, *site.shifts) if bias is not None]
        factors += [gain.factor for gain in site.gains if gain is not None]
    return list(dict.fromkeys((factor.parameter, factor.rows) for factor in factors))


class Held(Mapping[str, Tensor]):
    """Reads each piece once for consecutive sites that need it, and the next site's in the background.

    Arguments:
        checkpoint: where the tensors are.
        effective: whether biases and gains will be read too.
    """

    def __init__(self, checkpoint: Checkpoint, *, effective: bool) -> None:
        self._checkpoint = checkpoint
        self._effective = effective
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rankwise-read")
        self._held: dict[Piece, Future[Tensor]] = {}

    def hold(self, site: Site, following: Site | None) -> None:
        """Let go of what neither site needs, and fetch what is missing."""
        wanted = pieces(site, effective=self._effective)
        ahead = pieces(following, effective=self._effective) if following is not None else []
        if self._bytes(ahead) > AHEAD:
            ahead = [piece for piece in ahead if piece in self._held]
        for piece in set(self._held) - {*wanted, *ahead}:
            del self._held[piece]
        for piece in (*wanted, *ahead):
            if piece not in self._held:
                self._held[piece] = self._pool.submit(self._fetch, piece)

    def bytes_of(self, site: Site) -> int:
        """What reading a site costs, for progress."""
        return self._bytes(pieces(site, effective=self._effective))

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> Tensor:
        """Rows of a tensor, as `Site.product` asks for them."""
        if index is None:
            return self[name]
        (rows,) = index
        return self._held[name, (rows.start, rows.stop)].result()

    def close(self) -> None:
        """Stop fetching."""
        self._held.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getitem__(self, name: str) -> Tensor:
        return self._held[name, None].result()

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint)

    def __len__(self) -> int:
        return len(self._checkpoint)

    def _fetch(self, piece: Piece) -> Tensor:
        name, rows = piece
        return self._checkpoint.read(name, None if rows is None else (slice(*rows),))

    def _bytes(self, wanted: Sequence[Piece]) -> int:
        total = 0
        for name, rows in wanted:
            entry = self._checkpoint.entries.get(name)
            if entry is not None:
                total += entry.bytes if rows is None else entry.bytes * (rows[1] - rows[0]) // entry.shape[0]
        return total
