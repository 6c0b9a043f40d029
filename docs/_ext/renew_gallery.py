"""Renew the results that the gallery is drawn from: `make gallery`, some minutes."""

from __future__ import annotations

import gzip
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from gallery import REPORTS, RESULTS

ROOT = RESULTS.parents[1]
# Results must not name the folders of a checkout and its environment; a test looks for such paths.
_FOLDERS = re.compile(rf'(?:{re.escape(str(ROOT))}|(?:/[^/"\s]+)+?/site-packages)/')

if __name__ == "__main__":
    for report in REPORTS:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "result.json"
            command = [sys.executable, "-m", *shlex.split(report.command), "--json", str(target)]
            # 1 is the answer of a check that finds something.
            if subprocess.run(command, cwd=ROOT, check=False).returncode not in (0, 1):
                sys.exit(f"{report.name} was not made")
            RESULTS.mkdir(exist_ok=True)
            report.file.write_bytes(gzip.compress(_FOLDERS.sub("", target.read_text("utf-8")).encode(), mtime=0))
