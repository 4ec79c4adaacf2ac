"""Plain data and what is known of it: everybody may use it, and it uses nothing of ours."""
