"""`python -m floatlens.lm_eval`: run lm-evaluation-harness with the model `floatlens` registered."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the harness's program."""
    try:
        from lm_eval.__main__ import cli_evaluate

        import floatlens.lm_eval.model  # noqa: F401  (registers the model)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "lm_eval":
            raise
        sys.exit("lm-evaluation-harness is not installed; run: pip install 'floatlens[lm-eval]'")
    from floatlens.errors import FloatLensError

    try:
        cli_evaluate()
    except FloatLensError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
