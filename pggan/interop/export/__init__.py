"""A generator for other programs: ONNX, `torch.export` and a Hugging Face folder."""
