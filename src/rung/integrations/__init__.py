"""Rung in training loops of others: callbacks for Hugging Face's Trainer and for Lightning. Each library is imported by its own module alone."""
