"""Usage errors: one sentence that names the problem, the value and the fix.

The command line prints the message and exits with code 2; it shows a traceback only with --debug.
"""


class FloatLensError(Exception):
    """An error that the user can fix.

    >>> raise FloatLensError("steps 0 is not a positive number; try --steps 32")
    Traceback (most recent call last):
    ...
    floatlens.errors.FloatLensError: steps 0 is not a positive number; try --steps 32
    """


class NotANumber(FloatLensError):
    """NaN or inf in a model's outputs for one sample: the sample is recorded as an error, and the run continues."""
