"""Verdicts in one line, and in sentences."""

from floatlens.studies.sentences import count_verdicts, decided, say_aloud


def verdict(id, verdict, *models, value=0.3, n=20):
    return {
        "id": id,
        "claim": id,
        "verdict": verdict,
        "models": list(models),
        "value": value,
        "n": n,
        "source": "2601.07894",
    }


def test_verdicts_on_one_claim_are_counted():
    assert count_verdicts([verdict("a", "holds", "m"), verdict("a", "inconclusive", "m")]) == "holds 1, open 1"
    assert count_verdicts([verdict("a", "not testable here", "m", n=3)]) == "not testable here (1)"
    assert decided([verdict("a", "fails", "m"), verdict("a", "not testable here", "m")]) == (1, 2)


def test_three_sentences_name_the_models():
    claims = [
        verdict("drift.renewal", "holds", "mdm", value=0.42),
        verdict("drift.moves", "holds", "mdm", "arm"),
        verdict("absorption.sink", "holds", "big", value=51.2),
        verdict("absorption.sink", "fails", "arm", value=1.0),
        verdict("knowledge.twice", "fails", "mdm", "arm"),
    ]
    anchors, sink, passages = say_aloud(claims)
    assert "anchors of mdm float: up to 42 %" in anchors and "they move more in mdm than in arm" in anchors
    assert sink == "The first token of big is a sink, with 51 points more than its share; that of arm is none."
    assert passages == "Passages do not add twice as much to mdm as to arm."
    assert say_aloud([]) == []


def test_models_with_the_same_verdict_are_named_together():
    claims = [verdict("knowledge.ahead", "fails", mdm, "arm") for mdm in ("a", "b")]
    claims += [verdict("drift.moves", "holds", mdm, arm) for mdm in ("a", "b") for arm in ("arm", "big")]
    assert say_aloud(claims) == [
        "They move more in a and b than in arm and a and b than in big.",
        "With them a and b are not ahead of arm.",
    ]
