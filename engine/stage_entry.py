"""`python -m wavepp.engine.stage_entry`: a stage started by the supervisor, its settings in `WAVEPP_STAGE`."""

import os
import sys

from .lifeline import leave_with_parent
from .settings import StageSettings
from .stage import main

if __name__ == "__main__":
    leave_with_parent()
    status = main(StageSettings.model_validate_json(os.environ.pop("WAVEPP_STAGE")))
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads may wait in the data plane for a peer that is gone, and the interpreter would wait for them.
    os._exit(status)
