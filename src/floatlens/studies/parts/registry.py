"""The parts of a study in the order of work. To add one, write its file in this folder and add it to the tuple."""

from __future__ import annotations

from floatlens.studies.parts import causes, knowledge, stress, traces

PARTS = {module.PART.name: module.PART for module in (traces, knowledge, stress, causes)}
