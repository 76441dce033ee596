"""The demo's course: fleet, live view, closing report."""
