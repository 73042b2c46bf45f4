"""A reward in the sandbox finds no key: not in files, and not in the memory of what built its walls."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import needs_sandbox
from tests.security.ordinary_user import as_ordinary_user, why_no_ordinary_user

KEY = "sk-ant-sandbox-test-0123456789"

THIEF = '''
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)

class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]

def read(pid, address, size):
    """Bytes of another process's memory."""
    held = ctypes.create_string_buffer(size)
    here, there = Part(ctypes.addressof(held), size), Part(address, size)
    n = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return held.raw[:n] if n > 0 else b""

def stack_of(pid):
    """The memory between the lowest and the highest place where the kernel puts a stack's end."""
    step = 2**16
    for address in range(0x7fff_ffff_f000 - step, 0x7ffb_0000_0000, -step):
        if read(pid, address, 16):
            return b"".join(read(pid, page, 4096) for page in range(address - 2**18, address + 2**18, 4096))
    return b""

def loot():
    found = []
    for pid in range(1, 6):
        if pid == os.getpid():
            continue
        for name in ("environ", "cmdline", "mem"):
            try:
                found.append(open(f"/proc/{pid}/{name}", "rb").read())
            except OSError:
                pass
        found.append(stack_of(pid))
    return b" ".join(found)

held = loot()
OWN = bool(read(os.getpid(), ctypes.addressof(ctypes.create_string_buffer(b"x" * 64)), 16))

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return dict(score=0, acc=0, found=KEY in held, memory=OWN)
'''

SCORE = """
import json, os, sys
from llmzero_ray.prepared.sandbox import Sandbox, SandboxLimits
with Sandbox(sys.argv[1], limits=SandboxLimits(start_cpu_s=120)) as sandbox:
    row = dict(data_source="d", solution_str="x", ground_truth="x", extra_info={})
    [outcome] = sandbox.score([row])
    tree = {sandbox._process.pid}
    seen = []
    for _ in range(5):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            try:
                parent = int(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[1])
                if int(name) in tree or parent in tree:
                    tree.add(int(name))
            except OSError:
                pass
    for pid in tree:
        try:
            seen.append(open(f"/proc/{pid}/environ").read())
        except OSError:
            pass
    print(json.dumps([outcome.problem, outcome.result, len(tree), "".join(seen)]))
"""


@pytest.mark.slow
@needs_sandbox
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no filter of system calls")
@pytest.mark.parametrize("who", ["as it is", "ordinary user"])
def test_a_reward_finds_no_key_in_the_memory_of_what_surrounds_it(tmp_path: Path, who: str) -> None:
    if who == "ordinary user" and (why := why_no_ordinary_user()):
        pytest.skip(why)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    reward = tmp_path / "reward.py"
    reward.write_text(THIEF.replace("KEY", repr(KEY.encode())))
    command = [sys.executable, "-B", "-c", SCORE, str(reward)]
    done = subprocess.run(
        command if who == "as it is" else as_ordinary_user(*command),
        env={**os.environ, "ANTHROPIC_API_KEY": KEY, "HOME": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    problem, result, n_processes, environments = json.loads(done.stdout.splitlines()[-1])
    assert (problem, n_processes >= 2) == ("", True)
    assert not result["found"], "the reward read the key"
    assert not result["memory"], "process_vm_readv is not refused"
    assert "PATH=" in environments or environments == "", "nothing was looked at"
    assert KEY not in environments
