"""The published figures of arXiv 2601.07894 as labelled data: `fl.paper.absorption()`, `fl.paper.temporal(layer=0)`, …"""

from floatlens.paper.figures import absorption, qk, retrieval_heads, reveal_order, rollout, table1, temporal

__all__ = ["absorption", "qk", "retrieval_heads", "reveal_order", "rollout", "table1", "temporal"]
