"""The parts of a study, in the order of work. A new one is a file beside this one and a name in the tuple here."""

from __future__ import annotations

from floatlens.studies.parts import causes, knowledge, stress, traces

PARTS = {module.PART.name: module.PART for module in (traces, knowledge, stress, causes)}
