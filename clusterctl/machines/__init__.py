"""Where machines come from, and what is done on each before jobs run."""
