"""Mixture of experts: sigmoid router with a selection bias, experts run one after the other over their own rows."""

from dataclasses import dataclass

import torch
from torch.nn import functional

from ..kernels import cpu_gemm
from ..kimi_linear_config import MoeConfig
from ..weights import Scope
from .mlp import GatedMlp, load_mlp


@dataclass(frozen=True, slots=True)
class Router:
    """Scores in float32. The bias steers the choice of experts only, never their weights (DeepSeek-V3, eq. 16)."""

    config: MoeConfig
    weight: torch.Tensor
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x `[T, hidden]` -> experts int64 `[T, top_k]` and their weights float32 `[T, top_k]`."""
        scores = torch.sigmoid(functional.linear(x.float(), self.weight))
        chosen = self._in_best_groups(scores + self.bias).topk(self.config.top_k, -1, sorted=False).indices
        weights = scores.gather(1, chosen)
        if self.config.renormalize:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, weights * self.config.scaling

    def _in_best_groups(self, choice: torch.Tensor) -> torch.Tensor:
        """A group is worth its two best experts; the others' experts cannot be chosen."""
        groups, kept = self.config.num_groups, self.config.top_groups
        if kept == groups:
            return choice
        grouped = choice.unflatten(-1, (groups, -1))
        worth = grouped.topk(min(2, grouped.shape[-1]), -1).values.sum(-1)
        worst = worth.topk(groups - kept, -1, largest=False).indices
        return grouped.scatter(1, worst.unsqueeze(-1).expand(-1, -1, grouped.shape[-1]), float("-inf")).flatten(1)


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """Routed experts plus shared ones. `gate_up` `[E, 2 * ff, hidden]`, `down` `[E, hidden, ff]`."""

    router: Router
    gate_up: torch.Tensor
    down: torch.Tensor
    shared: GatedMlp | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        chosen, weights = self.router(x)
        top_k = chosen.shape[1]
        order = chosen.flatten().argsort(stable=True)
        rows = order // top_k
        row_weights = weights.flatten()[order].unsqueeze(1)
        x_wide = cpu_gemm.widest(x, self.gate_up)
        counts = torch.bincount(chosen.flatten(), minlength=self.down.shape[0]).tolist()
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        first = 0
        for expert, count in enumerate(counts):
            if count == 0:
                continue
            own = slice(first, first + count)
            both = cpu_gemm.linear(x_wide.index_select(0, rows[own]), self.gate_up[expert], wide=True)
            gate, up = both.chunk(2, -1)
            mixed = cpu_gemm.linear(functional.silu(gate, inplace=True).mul_(up), self.down[expert], wide=True)
            out.index_add_(0, rows[own], row_weights[own] * mixed)
            first += count
        routed = out.to(x.dtype)
        return routed if self.shared is None else routed + self.shared(x)


def load_moe(scope: Scope, config: MoeConfig, hidden: int) -> MoeMlp:
    """Experts are stored one by one as w1 (gate), w3 (up) and w2 (down), and stacked here."""
    count, width = config.num_experts, config.intermediate_size
    gate = scope.scope("gate")
    router = Router(
        config,
        gate.take("weight", count, hidden, dtype=torch.float32),
        gate.take("e_score_correction_bias", count, dtype=torch.float32),
    )
    gate_up, down = scope.empty(count, 2 * width, hidden), scope.empty(count, hidden, width)
    for expert in range(count):
        stored = scope.scope(f"experts.{expert}")
        gate_up[expert, :width] = stored.take("w1.weight", width, hidden)
        gate_up[expert, width:] = stored.take("w3.weight", width, hidden)
        down[expert] = stored.take("w2.weight", hidden, width)
    shared = load_mlp(scope.scope("shared_experts"), hidden, width * config.num_shared) if config.num_shared else None
    return MoeMlp(router, gate_up, down, shared)
