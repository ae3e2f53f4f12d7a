"""The explorer in a page: data cannot escape its element."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from floatlens.errors import FloatLensError
from floatlens.explorer.page import asset, embed, escaped_json, page, script_hashes

HOSTILE = "</script><script>alert(1)</script> & \u2028 \u2029 <!-- ]]> \" ' &lt;"


def test_hostile_text_cannot_end_the_data() -> None:
    text = escaped_json({"question": HOSTILE})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"question": HOSTILE}


def test_the_title_is_escaped() -> None:
    assert "<title>&lt;/script&gt;" in page([], HOSTILE)


def test_the_script_can_stand_inside_a_page() -> None:
    assert not re.search("</script|<!--", asset(), re.IGNORECASE)


def test_the_hash_is_that_of_the_embedded_script() -> None:
    script = re.search(r'<script type="module">(.*?)</script>', embed([], "x"), re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert script_hashes() == [f"'sha256-{digest}'"]


def test_the_script_can_be_left_out() -> None:
    assert "module" not in embed([], "x", script=False)


def test_an_id_that_is_not_one_is_refused() -> None:
    with pytest.raises(FloatLensError, match="not a valid element id"):
        embed([], 'x" onload="alert(1)')
