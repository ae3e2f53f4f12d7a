"""What a user can put right: one sentence that names the thing, the value and the way out.

The command line prints the sentence and exits with code 2; a traceback is shown only with --debug.
"""


class FloatLensError(Exception):
    """An error that the user can put right.

    >>> raise FloatLensError("steps 0 is not a positive number; try --steps 32")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: steps 0 is not a positive number; try --steps 32
    """


class NotANumber(FloatLensError):
    """A model's numbers ran away on one sample: the sample is an error, the run goes on."""
