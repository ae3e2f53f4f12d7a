"""Verdicts in one line, and in sentences."""

from floatlens.findings.spelling import number, points
from floatlens.studies.sentences import count_verdicts, say_aloud


def verdict(id, verdict, *models, value=0.3, n=20, reason="", **details):
    about = {"id": id, "claim": id, "verdict": verdict, "models": list(models), "value": value, "n": n}
    return {**about, "source": "2601.07894", "reason": reason, "details": details}


def test_verdicts_on_one_claim_are_counted():
    assert count_verdicts([verdict("a", "holds", "m"), verdict("a", "inconclusive", "m")]) == "holds 1, open 1"
    assert count_verdicts([verdict("a", "not testable here", "m", n=3)]) == "not testable here (1)"


def test_every_sentence_is_one_finding_with_its_number_and_unit():
    token = "the interval lies above 0.1; the candidate is ','"
    claims = [
        verdict("sink.first", "fails", "mdm", value=0.004),
        verdict("sink.first", "holds", "big", value=0.442),
        verdict("sink.type", "holds", "mdm", value=0.9, reason=token, candidate=[0.95, 0.9, 1.0]),
        verdict("sink.back", "holds", "mdm", value=0.5, reason=token, out=[0.54, 0.4, 0.6], back=[0.0, 0.0, 0.0]),
        verdict("sink.absent", "holds", "mdm", value=0.5, reason=token, out=[0.54, 0.4, 0.6]),
        verdict("drift.moves", "fails", "mdm", "arm", value=-0.002),
        verdict(
            "knowledge.gain", "holds", "mdm", "arm", **{"gain of the MDM, points": 40.2, "gain of the ARM, points": 11}
        ),
        verdict("stress.noise", "holds", "mdm", "arm"),
    ]
    assert say_aloud(claims) == [
        "big gives its first token 44 points more attention than an even share; mdm gives it none.",
        "mdm's sink is a token type: it follows ',' to 95\N{NO-BREAK SPACE}% of the places where one is put.",
        "Without ',', mdm's anchors float: 54\N{NO-BREAK SPACE}% of their attention moves from window to window, "
        "0\N{NO-BREAK SPACE}% with one put back.",
        "Anchors move no more in mdm than in arm: a difference of −0.2 points of the attention on them.",
        "Passages add 40 points of accuracy to mdm, and 11 to arm.",
    ]


def test_no_difference_is_never_minus_zero():
    nothing = {"gain of the MDM, points": -0.01, "gain of the ARM, points": -0.3}
    claims = [
        verdict("knowledge.gain", "fails", "mdm", "arm", **nothing),
        verdict("drift.moves", "fails", "a", "b", value=-1e-9),
    ]
    assert [text.rpartition(":")[2] for text in say_aloud(claims)] == [
        " a difference of 0.0 points of the attention on them.",
        "Passages add 0.0 points of accuracy to mdm, and −0.3 to arm.",
    ]
    assert (points(-0.0), points(-1e-5), points(-0.01), number(-5.6e-17)) == ("0", "0", "−1.0", "0")


def test_without_prose_the_sink_is_that_of_the_questions():
    claims = [
        verdict("absorption.sink", "fails", "arm", value=-3.6),
        verdict("drift.renewal", "holds", "mdm", value=0.42),
    ]
    assert say_aloud(claims) == [
        "arm gives its first token no more attention than an even share.",
        "When mdm has written its answer, 42\N{NO-BREAK SPACE}% of the attention on its anchors lies elsewhere.",
    ]


def test_a_model_is_not_silenced_by_what_is_said_of_another():
    claims = [
        verdict("sink.back", "holds", "a", out=0.5, back=0.1),
        verdict("sink.absent", "holds", "a", **{"out": 0.5, "as is": 0.2}),
        verdict("sink.absent", "holds", "b", **{"out": 0.6, "as is": 0.3}),
    ]
    assert [text.partition(":")[0] for text in say_aloud(claims)] == [
        "Without its token, a's anchors float",
        "Without its token, b's anchors float",
    ]


def test_a_study_without_a_decided_claim_says_so():
    assert say_aloud([]) == []
    assert say_aloud([verdict("drift.moves", "inconclusive", "mdm", "arm")]) == [
        "None of 1 verdict is decided: these samples are too few or too alike."
    ]


def test_models_that_do_the_same_share_a_sentence():
    claims = [
        verdict("sink.first", "holds", "big", value=0.5),
        verdict("sink.first", "fails", "a", value=0.0),
        verdict("sink.first", "fails", "b", value=0.001),
        verdict("drift.floats", "fails", "a"),
        verdict("drift.floats", "fails", "b"),
    ]
    assert say_aloud(claims) == [
        "big gives its first token 50 points more attention than an even share; a and b give it none.",
        "The anchors of a and b move no more than the order of writing or an untrained network would move them.",
    ]
