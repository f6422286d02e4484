import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "record"))  # for the made-up evaluations in synthetic.py
