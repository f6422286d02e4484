"""A run's record on disk: one JSON line and one parquet file an evaluation.

    <folder>/evaluations.jsonl          Evaluation.to_json() plus format, id, scores_file; appended, never rewritten
                                        (or format, amends, checkpoint: where the point of that id was saved, told later)
    <folder>/scores/<id>.parquet        Evaluation.scores, zstd

The parquet file is written first and whole, the line after it, so every line's file exists. A process killed in between
leaves a file without a line, which nothing reads; killed within the line, a torn line, which reading skips.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from olmes_monitor.errors import RecordError
from olmes_monitor.record.files import FORMAT, append_line, plain, read_lines, write_table
from olmes_monitor.record.run import Run

if TYPE_CHECKING:
    from olmes_monitor.record.evaluation import Evaluation

LINES = "evaluations.jsonl"


class Recorder:
    """Writes evaluations into a folder. Only rank 0 has one; several processes may write to one folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Makes the folder. Raises RecordError if it cannot be made or written to, now and not at the first point."""
        self.folder = Path(folder)
        self.lines = self.folder / LINES
        try:
            (self.folder / "scores").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(f"cannot make the record's folder {self.folder}: {error}") from error
        for place in (self.folder, self.folder / "scores"):
            if not os.access(place, os.W_OK | os.X_OK):
                raise RecordError(f"the record's folder {place} is not writable; choose another folder")

    def write(self, evaluation: Evaluation) -> str:
        """Keeps an evaluation, failed ones (scores None) too, and returns its id. It is on disk when this returns.

        Raises RecordError if it cannot be written; what was there before stays readable.
        """
        point = evaluation.point
        name = f"{point.tokens:015d}-{point.step:08d}-{uuid.uuid4().hex[:8]}"  # sorts by tokens; unique over restarts
        file = None if evaluation.scores is None else f"scores/{name}.parquet"
        line = {"format": FORMAT, "id": name, "scores_file": file, **evaluation.to_json()}
        data = json.dumps(plain(line), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        try:
            if file is not None:
                write_table(evaluation.scores, self.folder / file)
            append_line(self.lines, data)
        except OSError as error:
            raise RecordError(
                f"cannot write the evaluation at {point.tokens} tokens to {self.folder}: {error}"
            ) from error
        return name

    def amend(self, name: str, checkpoint: str) -> None:
        """Adds to the evaluation of id `name` the checkpoint that was saved at its point afterwards.

        Raises RecordError if it cannot be written.
        """
        line = {"format": FORMAT, "amends": name, "checkpoint": checkpoint}
        try:
            append_line(self.lines, json.dumps(line, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            raise RecordError(f"cannot note the checkpoint {checkpoint} in {self.lines}: {error}") from error


def load_run(path: str | os.PathLike[str], fingerprint: str | None = None, known: Run | None = None) -> Run:
    """A run from its folder, the `olmes` folder in it, or the `evaluations.jsonl` in that.

    fingerprint: which suite's evaluations, if the record holds several suites; its first characters do. known: the run as
    it was loaded before: only what is new is read.
    Evaluations of one suite supersede each other only (a scan with a longer suite leaves the training's curve alone).
    Raises RecordError if there is no record, or it holds different fingerprints and none was chosen: curves over
    different questions must not be joined.
    """
    lines_path = _locate(Path(path))
    lines = read_lines(lines_path)
    found = {line["fingerprint"]: line["suite"] for line in lines}
    if fingerprint is not None:
        chosen = [known for known in found if known.startswith(fingerprint)]
        if len(chosen) != 1:
            raise RecordError(f"{len(chosen)} fingerprints in {lines_path} begin with {fingerprint!r}: {_named(found)}")
        found = {chosen[0]: found[chosen[0]]}
    if len(found) > 1:
        raise RecordError(
            f"{lines_path} holds evaluations of different suites: {_named(found)}; "
            f"choose one: --fingerprint {next(iter(found))}, or load_run(path, fingerprint=…)"
        )
    return Run(lines_path.parent, [line for line in lines if line["fingerprint"] in found], known)


def _locate(path: Path) -> Path:
    places = [path] if path.is_file() else [path / LINES, path / "olmes" / LINES]
    for place in places:
        if place.is_file():
            return place
    raise RecordError(f"no record of evaluations: neither {places[0]} nor {places[-1]} exists")


def _named(found: dict[str, str]) -> str:
    return ", ".join(f"{fingerprint} ({suite})" for fingerprint, suite in found.items())
