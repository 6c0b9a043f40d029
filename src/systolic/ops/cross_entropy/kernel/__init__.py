"""The Pallas kernels of the loss: softmax statistics of logits, and gradients."""
