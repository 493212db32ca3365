"""Streamlit's command line, which Ctrl-C ends as it should.

The server that runs an app with middleware raises the signal again once it has ended, and Streamlit takes that for a failure.
"""

import signal
import sys

from streamlit.web.cli import main


def end(*_: object) -> None:
    """Whoever pressed Ctrl-C wanted the end."""
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, end)
    main(prog_name="streamlit")
