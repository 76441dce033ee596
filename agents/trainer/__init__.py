"""`plimsoll trainer`: one task as a program, with checkpoint and swap hooks."""
