"""Tractable Approximate Gaussian Inference: networks that learn by Bayes' rule, without gradients.

Method: Goulet, Nguyen and Amiri, JMLR 22 (2021), arXiv 2004.09281; convolutions, pooling and batch
norm after Nguyen and Goulet, arXiv 2103.05461. The formulas are those of cuTAGI (lhnguyen102),
whose `DDPSequential` this follows too; `docs/workloads.md` writes them down.

All weights, biases and hidden units are independent Gaussians. A layer maps the mean and variance
of its inputs to those of its outputs. Going back, it gets the *innovations* of its outputs,

    d_mean = (posterior mean - prior mean) / prior variance
    d_var  = (posterior variance - prior variance) / prior variance^2

turns them into updates of its parameters, and passes on those of its inputs.
"""
