"""A trained policy as files that need no mjtrain: ONNX and TorchScript, and what their numbers mean."""
