"""A generator for other programs: safetensors, ONNX, `torch.export`, a Hugging Face folder and a page for browsers."""
