"""A file far larger than the memory it may take is read within that memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCAN = """
import sys
from pathlib import Path
from rankwise.sites.checkpoints import open_checkpoint

def peak():
    # Not getrusage: it would count what the parent had before it became this process.
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

before = peak()
with open_checkpoint(sys.argv[1]) as checkpoint:
    for name in checkpoint:
        assert checkpoint[name].shape == (4096, 4096)
        assert checkpoint.read(name, (slice(None), slice(0, 128))).shape == (4096, 128)
print(peak() - before)
"""


@pytest.mark.slow
def test_peak_memory_is_that_of_one_tensor(tmp_path: Path) -> None:
    size, count = 4096 * 4096 * 2, 64
    header = {
        f"layers.{at}.w": {"dtype": "BF16", "shape": [4096, 4096], "data_offsets": [at * size, (at + 1) * size]}
        for at in range(count)
    }
    text = json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        # Holes take no disk, and read as zeros.
        file.truncate(8 + len(text) + count * size)
    done = subprocess.run([sys.executable, "-c", SCAN, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4 * size
