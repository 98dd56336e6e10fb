"""The table of training images of each class."""

from pathlib import Path

import numpy as np

from planted import ArraySource
from thresher.data.selection import Selection
from thresher.data.write import WriteOptions, write_pack
from thresher.report.work import class_table
from thresher.study.analysis import analyse
from thresher.study.study import Study


def test_a_class_that_is_dropped_as_a_whole_is_the_smallest(tmp_path: Path) -> None:
    labels = np.repeat(np.arange(30), 4)
    ids, names = [f"{n:03d}" for n in range(120)], [f"class {n}" for n in range(30)]
    source = ArraySource(np.zeros((120, 4, 4, 1), np.uint8), labels, ["train"] * 120, ids, names)
    pack = write_pack(source, tmp_path / "pack", WriteOptions(processes=1))
    chosen = tmp_path / "chosen.parquet"
    Selection(
        ids=pack.ids.to_pylist(),
        labels=pack.labels,
        keep=pack.labels != 7,
        score=np.zeros(120),
        reason=[""] * 120,
        fingerprint=pack.fingerprint,
    ).save(chosen)
    base = {"data": str(pack.root), "model": "tiny", "validation": 0}
    content = {"base": base, "grid": {"selection": ["full", str(chosen)]}}
    table = class_table(analyse(Study.from_dict(content, tmp_path / "study")))
    counts = '<td class="n">1</td><td class="n">{}</td><td class="n">4</td>'
    assert f"<td>full</td>{counts.format(4)}" in table
    assert f"chosen.parquet</td>{counts.format(0)}" in table
