"""The modes, planned once as SQL over staged rows and a target table. Moves no row itself."""
