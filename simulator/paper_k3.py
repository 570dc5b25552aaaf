"""What the paper measured of Kimi K3 on eight GB300 (arXiv 2609.35263), to compare with."""

from dataclasses import dataclass

from ..scheduler.cost_model import StageProfile
from .workloads import Cell, Family

STAGES = 8
SCHEDULER = {
    "pipeline_fills": 0,
    "count_in_flight": False,
    "rise_decisions": 1,
    "fall_decisions": 1,
    "hysteresis": 0.0,
}
"""MPU as the K3 runs had it: M or M/2 by what is not scheduled yet, for one pipeline fill. No persistence is told of
these runs, and their single requests show none."""

TENSOR_PARALLEL = StageProfile(name="trtllm-tp8", wave_s=0.005, token_s=39.4e-6, context_s=0.0966e-9)
"""TensorRT-LLM on the same eight GPUs, seen as one stage: what its cold runs at c = 32 come to, 23.5, 21.7 and 19.25
thousand tokens a second for 65K, 131K and 262K tokens."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Input tokens a second, cached ones included, and seconds to complete. `tensor` and `pipeline` are the best of
    the tensor-parallel and of the other pipeline-parallel servers."""

    tokens_s: float
    p50_s: float
    p95_s: float
    tensor_tokens_s: float
    pipeline_tokens_s: float
    pipeline_p50_s: float
    pipeline_p95_s: float


# wavepp tok/s, p50, p95; best tensor tok/s; best pipeline tok/s, p50, p95
_ROWS: tuple[tuple[Family, int, int, float, float, float, float, float, float, float], ...] = (
    ("cold", 65_536, 1, 22_089, 3.0, 3.0, 23_330, 20_361, 3.2, 3.2),
    ("cold", 65_536, 4, 37_467, 6.8, 7.1, 23_922, 41_554, 6.1, 6.1),
    ("cold", 65_536, 8, 43_007, 11.8, 12.4, 23_917, 41_980, 12.2, 12.2),
    ("cold", 65_536, 16, 44_746, 22.8, 23.2, 23_925, 42_242, 24.4, 24.4),
    ("cold", 65_536, 32, 44_643, 45.4, 45.9, 23_925, 42_456, 48.8, 48.8),
    ("cold", 131_072, 1, 20_699, 6.3, 6.4, 21_430, 23_030, 5.7, 5.7),
    ("cold", 131_072, 4, 35_765, 14.2, 14.8, 22_059, 33_662, 15.3, 15.3),
    ("cold", 131_072, 8, 36_030, 28.5, 29.1, 22_058, 33_873, 30.6, 30.6),
    ("cold", 131_072, 16, 36_129, 56.8, 57.6, 22_052, 33_984, 61.1, 61.1),
    ("cold", 131_072, 32, 35_878, 114.4, 116.3, 22_070, 34_102, 122.2, 122.2),
    ("cold", 262_144, 1, 21_065, 12.4, 12.8, 18_938, 21_754, 12.1, 12.1),
    ("cold", 262_144, 4, 27_924, 37.1, 37.7, 19_220, 27_041, 38.5, 38.5),
    ("cold", 262_144, 8, 27_988, 74.2, 74.8, 19_230, 27_110, 77.0, 77.0),
    ("cold", 262_144, 16, 27_971, 149.0, 149.7, 19_249, 27_144, 153.9, 153.9),
    ("cold", 262_144, 32, 28_031, 297.8, 298.9, 19_254, 27_179, 307.8, 307.9),
    ("reuse", 131_072, 1, 56_810, 2.3, 2.3, 155_002, 43_197, 3.0, 3.0),
    ("reuse", 131_072, 4, 124_682, 4.2, 4.5, 183_856, 134_161, 3.6, 4.6),
    ("reuse", 131_072, 8, 255_406, 3.7, 5.5, 186_690, 228_012, 4.1, 6.2),
    ("reuse", 131_072, 16, 262_740, 7.3, 9.6, 185_931, 249_227, 8.0, 9.3),
    ("reuse", 131_072, 32, 289_096, 13.2, 17.0, 186_064, 253_844, 15.9, 16.6),
    ("reuse", 262_144, 1, 64_674, 4.1, 4.1, 133_140, 49_238, 5.3, 5.3),
    ("reuse", 262_144, 4, 176_960, 5.7, 6.2, 153_418, 140_713, 7.1, 8.4),
    ("reuse", 262_144, 8, 190_842, 10.6, 12.7, 152_211, 180_199, 11.2, 12.4),
    ("reuse", 262_144, 16, 220_899, 18.1, 19.3, 151_376, 183_182, 22.4, 22.4),
    ("reuse", 262_144, 32, 218_743, 35.8, 39.7, 142_715, 184_753, 44.1, 44.9),
    ("mixed", 0, 8, 61_063, 21.0, 25.6, 41_945, 58_079, 22.2, 26.4),
    ("mixed", 0, 16, 61_436, 41.9, 51.1, 42_064, 58_468, 44.3, 44.7),
    ("mixed", 0, 32, 61_190, 83.8, 109.7, 41_695, 58_348, 88.8, 98.1),
)

MEASURED = {Cell(family, tokens, clients): Measured(*figures) for family, tokens, clients, *figures in _ROWS}
