"""The table of options: one declaration for each option of each verb (`verbs`)."""
