"""Both trainers on two ranks, in real processes: one curve, tokens of all ranks, the same numbers as one process gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from parts import make_llama, make_task, make_tokenizer

from olmes_monitor import Suite, load_run, score

SCRIPT = Path(__file__).parent / "train_on_two_ranks.py"


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["lightning", "lightning_fsdp2", "lightning_tensor", "transformers"])
def test_on_two_ranks(trainer, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [*command, str(SCRIPT), trainer, str(tmp_path)]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=240, env=environment, cwd=tmp_path)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    # 32 rows of 10 tokens, 4 rows a rank, boundaries at 100, 200 and 300. Data parallel: 80 tokens an optimizer step. The
    # ranks of a tensor-parallel group are fed the same rows, which count once: 40.
    points = [(0, 0), (160, 2), (240, 3), (320, 4)]
    if trainer == "lightning_tensor":
        points = [(0, 0), (120, 3), (200, 5), (320, 8)]
    run = load_run(tmp_path)
    assert [(e.point.tokens, e.point.step) for e in run.evaluations] == points
    assert all(e.cost["ranks"] == 2 for e in run.evaluations)
    assert len(json.loads((tmp_path / "losses.json").read_text())) == points[-1][1]
    suite = Suite("tiny", [make_task("boxes", 7), make_task("balls", 3, seed=1, normalization="pmi")])
    alone = score(make_llama(), make_tokenizer(suite), suite)
    assert alone.fingerprint == run.fingerprint
    for name in ("cf", "mcf"):
        found, truth = run.scores(0)[name].to_numpy(), alone.scores[name].to_numpy()
        np.testing.assert_allclose(found, truth, atol=1e-5, rtol=0)
