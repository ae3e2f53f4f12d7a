"""The how-tos for plug-ins work from a package outside the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.howto import outside


@pytest.mark.parametrize(
    "page",
    ["howto/new-family", "statistics", "howto/new-intervention", "howto/new-finding", "howto/new-stress", "howto/data"],
)
def test_the_code_of_a_page_runs_from_a_package_outside_the_tree(page: str, tmp_path: Path) -> None:
    package = outside.build(f"{page}.md", tmp_path)
    package.run()
    for command in package.commands:
        assert package.run_command(command)


LEVEL = '''
```toml title="pyproject.toml"
[project]
name = "level-rule"
version = "2.5"

[project.entry-points."floatlens.plugins"]
broken = "level_rule.broken"
level = "level_rule.rules"
```

```python title="level_rule/broken.py"
raise RuntimeError("out of order")
```

```python title="level_rule/rules.py"
import floatlens as fl


@fl.register_rule
def level(received, *, least=0.5):
    return received > least
```

```python
import multiprocessing
import warnings

import numpy as np

import floatlens as fl
from floatlens.registry import FAILED, PLUGINS


def found(spec):
    """Also in a process of its own, which starts with nothing loaded."""
    return fl.parse_rule(spec)(np.array([0.4, 0.6])).tolist()


if __name__ == "__main__":
    assert not PLUGINS  # importing floatlens loads no plug-in
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert found("level(0.3)") == [True, True]
    assert PLUGINS == {"level": "2.5"} and "out of order" in FAILED["broken"]
    assert any("'broken'" in str(warning.message) for warning in said)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(found, ("level",)) == [False, True]
    try:
        fl.register_rule(type("", (), {"__name__": "sigma", "__call__": lambda self, a: a > 1})())
    except fl.FloatLensError as error:
        assert "already registered" in str(error)
    print("done")
```
'''


def test_a_plug_in_is_loaded_on_the_first_look_up_and_in_spawned_processes(tmp_path: Path) -> None:
    package = outside.build_from_text(LEVEL, tmp_path)
    script = package.work / "use.py"  # a spawned process imports the script again
    script.write_text(package.script)
    assert "done" in package.run(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")


def test_help_works_beside_a_broken_plug_in_without_loading_it(tmp_path: Path) -> None:
    package = outside.build_from_text(LEVEL, tmp_path)
    assert "out of order" not in package.run_command("floatlens --help")
