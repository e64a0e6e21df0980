"""Export of a trained policy to files that need no mjtrain: ONNX, TorchScript and metadata."""
