"""`python -m wavepp.engine.stage_entry`: a stage started by the supervisor, its settings in `WAVEPP_STAGE`."""

import os

from .lifeline import leave_with_parent
from .settings import StageSettings
from .stage import main

if __name__ == "__main__":
    leave_with_parent()
    main(StageSettings.model_validate_json(os.environ.pop("WAVEPP_STAGE")))
