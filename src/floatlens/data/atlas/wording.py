"""All relations and hops of the atlas."""

from __future__ import annotations

from floatlens.data.atlas import nature, people, places, science, works

RELATIONS = {
    relation.name: relation for part in (places, people, works, science, nature) for relation in part.RELATIONS
}
HOPS = (*places.HOPS, *works.HOPS, *science.HOPS)
