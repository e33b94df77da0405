"""The quantization configs vLLM sees: one class a checkpoint format, registered under vLLM's names and ``ascend``."""

from __future__ import annotations

from typing import Any, ClassVar

import regex as re
import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig, QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.models.utils import WeightsMapper

from aloft import config as settings
from aloft.quantization import experts, gguf, registry
from aloft.quantization.description import Description, shard_names
from aloft.quantization.embedding import AloftQuantizedEmbeddingMethod
from aloft.quantization.formats import modelslim
from aloft.quantization.formats.compressed_tensors import CompressedTensors
from aloft.quantization.formats.gguf import Gguf
from aloft.quantization.formats.grouped import Awq, Gptq
from aloft.quantization.gguf import index
from aloft.quantization.linear import AloftQuantizedLinearMethod

#: what vocabulary tables are called
_TABLES = frozenset(("embed_tokens", "word_embeddings", "tok_embeddings", "embed_in", "wte"))


class AloftQuantizationConfig(QuantizationConfig):
    """Asks the checkpoint's description about each layer, and the registry for the method."""

    #: the name a checkpoint of this format has in vLLM, and the other names a user may give it
    NAME: ClassVar[str] = ""
    ALIASES: ClassVar[tuple[str, ...]] = ()
    #: ``quantization_config.quant_method`` of config.json
    METHOD: ClassVar[str] = ""

    description: Any = None

    @classmethod
    def get_name(cls) -> Any:
        return cls.NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 0

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def describe(cls, config: dict[str, Any]) -> Description:
        """The description of ``quantization_config``."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> QuantizationConfig:
        made = cls()
        made.description = cls.describe(config)
        return made

    @classmethod
    def override_quantization_method(
        cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None
    ) -> Any:
        # only names that are spelt in several ways: vLLM refuses other built-in names an opinion
        if not cls.ALIASES or str(hf_quant_cfg.get("quant_method", "")).lower() != cls.METHOD:
            return None
        return cls.NAME if user_quant is None or user_quant in (cls.NAME, *cls.ALIASES) else None

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        if self.description is not None:
            return
        raise ValueError(
            f"--quantization {self.NAME} needs a quantization_config of that method in the config.json of "
            f"{model_name}; found: {_found(model_name, hf_config, revision)}."
        )

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        names = getattr(self.description, "names", None)
        if names is not None:
            self.description.rename({name: hf_to_vllm_mapper._map_name(name) or name for name in names()})

    @staticmethod
    def get_checkpoint_weight_mapper() -> WeightsMapper:
        return WeightsMapper(orig_to_new_suffix={".weight_shape": None})

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> QuantizeMethodBase | None:
        description: Description = self.description
        if isinstance(layer, LinearBase | ParallelLMHead):
            described = description.linear(prefix, shard_names(prefix, self.packed_modules_mapping))
            if described is None:
                return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None
            kind = registry.LINEAR if isinstance(layer, LinearBase) else registry.HEAD
            cls = registry.method(described.name, kind, prefix)
            return AloftQuantizedLinearMethod(described, cls(nz=_nz_wanted()), prefix)  # type: ignore[return-value]
        if isinstance(layer, VocabParallelEmbedding):
            name = prefix or self._table_name()
            described = description.embedding(name)
            if described is None:
                return None
            table = registry.method(described.name, registry.EMBEDDING, name)
            return AloftQuantizedEmbeddingMethod(described, table(nz=_nz_wanted()), name)  # type: ignore[return-value]
        if isinstance(layer, Attention):
            described = description.kv_cache(prefix)
            return None if described is None else registry.method(described.name, registry.KV_CACHE)(described, prefix)
        if isinstance(layer, RoutedExperts):
            return experts.method_of(description, layer, prefix, _nz_wanted())  # type: ignore[return-value]
        return None

    def _table_name(self) -> str:
        """Of the vocabulary table of a model that does not tell its layer's name, as Llama does not."""
        names: set[str] = getattr(self.description, "names", set)()
        found = sorted(name for name in names if name.rpartition(".")[2] in _TABLES)
        if len(found) > 1:
            raise ValueError(f"the description names several vocabulary tables, the model one: {', '.join(found)}.")
        return found[0] if found else "model.embed_tokens"


class ModelSlimConfig(AloftQuantizationConfig):
    """ModelSlim's checkpoints say nothing in config.json: the description is a file of its own."""

    NAME = "ascend"

    @staticmethod
    def get_cache_scale_mapper() -> WeightsMapper:
        return WeightsMapper(
            orig_to_new_regex={re.compile(r"\.([kv])_proj\.kv_cache_(scale|offset)$"): r".attn.\1_cache_\2"}
        )

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        content = modelslim.find(model_name, revision)
        if content is None:
            found = _found(model_name, hf_config, revision)
            raise ValueError(f"--quantization ascend needs {modelslim.FILE} in {model_name}; found: {found}.")
        self.description = modelslim.ModelSlim(content)


class CompressedTensorsConfig(AloftQuantizationConfig):
    NAME = METHOD = "compressed-tensors"

    @classmethod
    def describe(cls, config: dict[str, Any]) -> Description:
        return CompressedTensors(config)


class AwqConfig(AloftQuantizationConfig):
    NAME = METHOD = "awq"
    ALIASES = ("auto_awq", "awq_marlin")

    @classmethod
    def describe(cls, config: dict[str, Any]) -> Description:
        return Awq(config)


class GptqConfig(AloftQuantizationConfig):
    NAME = METHOD = "gptq"
    ALIASES = ("auto_gptq", "gptq_marlin")

    @classmethod
    def describe(cls, config: dict[str, Any]) -> Description:
        return Gptq(config)


class GgufConfig(AloftQuantizationConfig):
    """GGUF files say it themselves, tensor by tensor."""

    NAME = "gguf"

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        file = gguf.find(model_name)
        if file is None:
            raise ValueError(
                f"--quantization gguf needs one GGUF file and no other weights in {model_name}; found: "
                f"{_found(model_name, hf_config, revision)}."
            )
        self.description = Gguf(index.read(file))


CONFIGS: tuple[type[AloftQuantizationConfig], ...] = (
    ModelSlimConfig,
    CompressedTensorsConfig,
    AwqConfig,
    GptqConfig,
    GgufConfig,
)


def _found(model: str, hf_config: Any, revision: str | None) -> str:
    """What a checkpoint is, for who has taken it for something else."""
    if modelslim.find(model, revision) is not None:
        return f"a {modelslim.FILE} (--quantization ascend)"
    if (file := gguf.find(model)) is not None:
        return f"the GGUF file {file.name} (--quantization gguf)"
    said = getattr(hf_config, "quantization_config", None)
    return str(said.get("quant_method", said)) if isinstance(said, dict) else "a float checkpoint"


def _nz_wanted() -> bool:
    """Whether the engine being built packs quantized weights (``weight_nz_mode`` 1 or 2)."""
    return settings.of(get_current_vllm_config_or_none()).weight_nz_mode >= 1
