"""From the running plan to the next: few starts, warm state between plans."""
