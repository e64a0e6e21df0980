"""The training loop of all learning libraries; it knows none of them."""
