"""What a scheme's name means to the tool: widths, groups, activations, and the algorithms used by default."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

FLOAT_ACTIVATIONS, TOKEN, STATIC = "float", "token", "static"


@dataclass(frozen=True)
class Recipe:
    """One scheme, and how its numbers are found.

    group: input features that share a scale, 0 for a whole row. adapt: the group is the largest multiple of 32 up to
    that which divides the input features. activations: ``float``, ``token`` (a scale a token) or
    ``static`` (one calibrated scale). rotate: Hadamard rotations folded into the weights. kronecker: an online rotation
    before each quantized product. smooth: exponent of SmoothQuant's migration, 0 for none. awq: AWQ's search for scales
    of input channels. gptq: error feedback;
    otherwise nearest rounding. rounds: of scales and codes descending together after that. symmetric_inputs: no offset
    of static activations. sensitive: layers whose activations keep 8 bits in a 4-bit scheme (with groups of
    sensitive_group at most), or a scale a token in a static one.
    """

    scheme: str
    bits: int
    group: int = 0
    adapt: bool = False
    symmetric: bool = True
    activations: str = FLOAT_ACTIVATIONS
    activation_bits: int = 16
    rotate: bool = False
    kronecker: bool = False
    smooth: float = 0.0
    awq: bool = False
    gptq: bool = False
    rounds: int = 2
    search: bool = True
    symmetric_inputs: bool = False
    sensitive: tuple[str, ...] = ()
    sensitive_group: int = 0

    def of(self, layer: str) -> Recipe | None:
        """The recipe of a linear layer, by its name in the block; None where it stays float."""
        if self.bits == 16:
            return None
        if layer not in self.sensitive:
            return self
        if self.bits == 8:
            return replace(self, scheme="w8a8-dynamic", activations=TOKEN, sensitive=())
        return replace(
            self, scheme="w4a8", activation_bits=8, kronecker=False, sensitive=(), group=self.sensitive_group
        )

    def fitted(self, features: int) -> Recipe:
        """The recipe for a number of input features."""
        return replace(self, group=largest_group(self.group, features), adapt=False) if self.adapt else self

    def shared(self, features: set[int]) -> Recipe:
        """The recipe whose groups are the same for layers of all these numbers of input features."""
        common = math.gcd(*features)
        return replace(self.fitted(common), sensitive_group=largest_group(self.sensitive_group, common))

    def check_groups(self, features: set[int]) -> None:
        """Raises ValueError, before anything is computed, where groups do not divide all numbers of input features."""
        wrong = sorted(count for count in features if self.group and not self.adapt and count % self.group)
        if wrong:
            common = math.gcd(*features)
            fits = [0, *(size for size in range(32, common + 1, 32) if common % size == 0)]
            raise ValueError(
                f"groups of {self.group} do not divide the {wrong[0]} input features of this model's layers; "
                f"--group-size that does: {', '.join(map(str, fits))}"
            )

    @property
    def needs_text(self) -> bool:
        return self.gptq or self.awq or self.smooth > 0 or self.activations == STATIC


def largest_group(limit: int, features: int) -> int:
    """The largest multiple of 32 up to the limit that divides the features; 0 where there is none."""
    return next((size for size in range(limit // 32 * 32, 0, -32) if features % size == 0), 0)


_RECIPES = {
    recipe.scheme: recipe
    for recipe in (
        Recipe("float", 16),
        Recipe("w8a16", 8),
        Recipe("w8a8-dynamic", 8, activations=TOKEN, activation_bits=8, rotate=True),
        Recipe(
            "w8a8-static",
            8,
            activations=STATIC,
            activation_bits=8,
            rotate=True,
            sensitive=("mlp.down_proj",),
        ),
        Recipe("w4a16", 4, group=64, symmetric=False, gptq=True),
        Recipe("w4a8", 4, group=128, adapt=True, activations=TOKEN, activation_bits=8, rotate=True, gptq=True),
        Recipe(
            "w4a4",
            4,
            activations=TOKEN,
            activation_bits=4,
            rotate=True,
            kronecker=True,
            gptq=True,
            sensitive=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            sensitive_group=128,
        ),
    )
}
SCHEMES = tuple(_RECIPES)


def recipe(scheme: str, group: int | None = None, symmetric: bool | None = None, algorithm: str = "auto") -> Recipe:
    """The recipe of a scheme, with what the user changed.

    Args:
        algorithm: ``auto`` (the scheme's own), ``minmax`` or ``mse`` (nearest rounding), ``gptq``, ``smoothquant``
            (in the place of rotations, for 8-bit activations), ``awq`` (in the place of both, for 4-bit weights).

    Raises:
        ValueError: an unknown scheme or algorithm, or one that does not go with the scheme.
    """
    found = _RECIPES.get(scheme.lower().replace("_", "-"))
    if found is None:
        raise ValueError(f"--scheme must be one of {', '.join(SCHEMES)}, not {scheme!r}")
    if group is not None:
        if found.bits >= 8 and group:
            raise ValueError(f"--group-size must be 0 for {found.scheme}: only 4-bit weights have groups")
        if group % 32:
            raise ValueError(f"--group-size must be 0 or a multiple of 32, not {group}")
        found = replace(found, group=group, adapt=False)
    if symmetric is not None:
        if found.activations == STATIC:
            found = replace(found, symmetric_inputs=symmetric)
        elif not symmetric and found.scheme != "w4a16":
            raise ValueError(f"--asymmetric goes with w4a16 and w8a8-static, not with {found.scheme}")
        else:
            found = replace(found, symmetric=symmetric)
    if algorithm in ("minmax", "mse"):
        found = replace(found, gptq=False, smooth=0.0, rotate=False, search=algorithm == "mse", sensitive=())
    elif algorithm == "gptq":
        found = replace(found, gptq=True)
    elif algorithm == "smoothquant":
        if found.activation_bits != 8:
            raise ValueError(f"--algorithm smoothquant goes with 8-bit activations, not with {found.scheme}")
        found = replace(found, smooth=0.5, rotate=False)
    elif algorithm == "awq":
        if found.bits != 4 or found.kronecker:
            raise ValueError(f"--algorithm awq goes with w4a16 and w4a8, not with {found.scheme}")
        found = replace(found, awq=True, gptq=False, rotate=False)
    elif algorithm != "auto":
        raise ValueError(f"--algorithm must be auto, minmax, mse, gptq, smoothquant or awq, not {algorithm!r}")
    return found
