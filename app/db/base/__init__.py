"""Tables, connections, transactions, migrations."""
