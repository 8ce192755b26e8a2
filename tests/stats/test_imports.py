import subprocess
import sys


def test_needs_neither_torch_nor_transformers():
    code = "import sys, specaudit.stats; sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
