"""The chunked KDA that the demo is trained with is the recurrence that it stands for, forwards and backwards."""

import pytest
import torch
from torch import Tensor
from wavepp.models.demo.differentiable_kda import differentiable_kda


def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Token by token in fp64, from the definition."""
    q, k, v, g, beta, state = (x.double() for x in (q, k, v, g, beta, state))
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp().unsqueeze(-1)
        error = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", beta[:, t].unsqueeze(-1) * k[:, t], error)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * q.shape[-1] ** -0.5)
    return torch.stack(outputs, 1), state


def inputs(tokens: int, strongest_decay: float) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    q, k = (torch.nn.functional.normalize(normal(2, tokens, 3, 8), dim=-1) for _ in range(2))
    v = normal(2, tokens, 3, 8)
    g = -strongest_decay * torch.rand(2, tokens, 3, 8, generator=generator)
    beta = torch.rand(2, tokens, 3, generator=generator)
    return q, k, v, g, beta, normal(2, 3, 8, 8)


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 50])
@pytest.mark.parametrize("strongest_decay", [0.1, 2.0, 9.9])
def test_outputs_and_state_are_those_of_the_recurrence(tokens: int, strongest_decay: float) -> None:
    q, k, v, g, beta, state = inputs(tokens, strongest_decay)
    expected, expected_state = recurrence(q, k, v, g, beta, state)
    out, final = differentiable_kda(q, k, v, g, beta, initial_state=state, output_final_state=True)
    torch.testing.assert_close(out.double(), expected, atol=2e-5, rtol=1e-4)
    assert final is not None
    torch.testing.assert_close(final.double(), expected_state, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("strongest_decay", [0.1, 9.9])
def test_gradients_are_those_of_the_recurrence(strongest_decay: float) -> None:
    tensors = [x.requires_grad_() for x in inputs(37, strongest_decay)]
    q, k, v, g, beta, state = tensors
    expected = torch.autograd.grad(recurrence(q, k, v, g, beta, state)[0].square().sum(), tensors)
    got = torch.autograd.grad(differentiable_kda(q, k, v, g, beta, state)[0].square().sum(), tensors)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-3)


def test_a_decay_without_bound_stays_finite_and_forgets() -> None:
    q, k, v, g, beta, state = inputs(40, 1.0)
    g = (g - 200.0).requires_grad_()
    out, _ = differentiable_kda(q, k, v, g, beta, initial_state=state)
    # With nothing kept from token to token, what is read is what has just been written.
    just_written = torch.einsum("bthk,bthk->bth", q, k).unsqueeze(-1) * beta.unsqueeze(-1) * v * 8**-0.5
    torch.testing.assert_close(out, just_written, atol=1e-3, rtol=0)
    (gradient,) = torch.autograd.grad(out.sum(), [g])
    assert torch.isfinite(gradient).all()
