"""What libraries print when something is wrong: tables by kind of cause, one row a message."""
