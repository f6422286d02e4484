import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "record"))  # for the made-up evaluations in synthetic.py


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Folders of two runs of one suite: "early", and "late" whose MCF rises later. One task is named NASTY."""
    from made_runs import NASTY, make_run

    folder = tmp_path_factory.mktemp("runs")
    tasks = ("arc_easy", "csqa", "mmlu", "piqa", NASTY)
    make_run(folder / "early", tasks, n=114, points=18)
    make_run(folder / "late", tasks, n=114, points=18, delay=0.25)
    return folder
