"""The mixers on the CPU, in torch."""

from ..wave import Wave
from . import cpu_attention, cpu_recurrent


class CpuKernels:
    """Stateless; see `Kernels` for shapes. Owner: the LOOP thread."""

    gqa = staticmethod(cpu_attention.gqa)
    mla = staticmethod(cpu_attention.mla)
    short_conv = staticmethod(cpu_recurrent.short_conv)
    kda = staticmethod(cpu_recurrent.kda)

    def begin(self, wave: Wave) -> None:
        """Nothing to plan on the CPU."""
