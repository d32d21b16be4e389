# Install Regard if it is not installed, and choose the device. In Colab, first upload a wheel of Regard
# (regard-*.whl) in the Files panel, or set REGARD to a wheel, a clone or an address that pip can install.
import importlib.util
import subprocess
import sys
from pathlib import Path

REGARD = ""
if importlib.util.find_spec("regard") is None:
    here = Path.cwd()
    clones = [place for place in (here, *here.parents) if (place / "src" / "regard").is_dir()]
    places = [*sorted(here.glob("regard-*.whl"), reverse=True), *clones]
    if not (REGARD or places):
        raise SystemExit("Regard is not installed: put a wheel next to this notebook, or set REGARD above.")
    address = REGARD if "://" in REGARD else Path(REGARD or places[0]).resolve().as_uri()
    install = [sys.executable, "-m", "pip", "install", "--quiet", f"regard[view] @ {address}"]
    subprocess.run(install, check=True)

import torch

import regard

device = "cuda" if torch.cuda.is_available() else "cpu"
print("device:", device)
